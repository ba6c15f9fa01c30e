-- Who is there, what they say of themselves, in which settings they agree, and who holds what.
-- Anybody may ask.
if not crawl then return answer('lost') end
if not a.facts then return answer('ok', nil, redis.call('GET', HOLDERS)) end
local facts = redis.call('HGETALL', FACTS)
return answer('ok', {facts = facts, fixed = crawl.fixed}, redis.call('GET', HOLDERS))
