-- Takes blobs that nothing uses, to remove them. a: back (some that could not be removed), most, age (ms
-- for which nothing has used them). None after a restart, until fetchers have said again what they said.
for _, blob in ipairs(a.back) do redis.call('ZADD', LITTER, now, blob) end
local crawl = parsed(redis.call('GET', CRAWL), CRAWL)
if crawl.claims > now or crawl.run ~= server() then return {'ok', {}} end
local found = redis.call('ZRANGEBYSCORE', LITTER, '-inf', now - a.age, 'LIMIT', 0, a.most)
if found[1] then redis.call('ZREM', LITTER, unpack(found)) end
return {'ok', found}
