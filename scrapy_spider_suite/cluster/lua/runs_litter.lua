-- Takes blobs that nothing uses, to remove them. a: back (some that could not be removed), most, age (ms
-- for which nothing has used them).
for _, blob in ipairs(a.back) do redis.call('RPUSH', LITTER, blob .. now) end
local found = {}
for _, each in ipairs(redis.call('LRANGE', LITTER, 0, a.most - 1)) do
  if tonumber(string.sub(each, 9)) + a.age > now then break end
  found[#found + 1] = string.sub(each, 1, 8)
end
if found[1] then redis.call('LTRIM', LITTER, #found, -1) end
return {'ok', found}
