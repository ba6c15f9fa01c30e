-- Takes blobs that nothing uses, to remove them. a: back (some that could not be removed), most, age (ms
-- for which nothing has used them). None after a restart, until fetchers have said again what they said.
for _, blob in ipairs(a.back) do redis.call('RPUSH', LITTER, blob .. now) end
local crawl = parsed(redis.call('GET', CRAWL), CRAWL)
if crawl.claims > now or crawl.run ~= server() then return {'ok', {}} end
local found, seen = {}, 0
for _, each in ipairs(redis.call('LRANGE', LITTER, 0, a.most - 1)) do
  local blob = string.sub(each, 1, 8)
  if tonumber(string.sub(each, 9)) + a.age > now then break end
  seen = seen + 1
  if redis.call('HEXISTS', BLOBS, blob) == 0 then found[#found + 1] = blob end  -- it may be used again
end
if seen > 0 then redis.call('LTRIM', LITTER, seen, -1) end
return {'ok', found}
