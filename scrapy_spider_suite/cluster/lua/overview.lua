-- Returns the members, their facts, the shared settings and the holders. Needs no membership.
if not crawl then return answer('lost') end
if not a.facts then return answer('ok', nil, redis.call('GET', HOLDERS)) end
local facts = redis.call('HGETALL', FACTS)
return answer('ok', {facts = facts, fixed = crawl.fixed}, redis.call('GET', HOLDERS))
