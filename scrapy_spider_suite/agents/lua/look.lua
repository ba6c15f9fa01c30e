-- Who is there, what they say of themselves, and who holds what. Anybody may ask.
if not crawl then return answer('lost') end
if not a.facts then return answer('ok', nil, redis.call('GET', HOLDERS)) end
return answer('ok', {facts = redis.call('HGETALL', FACTS)}, redis.call('GET', HOLDERS))
