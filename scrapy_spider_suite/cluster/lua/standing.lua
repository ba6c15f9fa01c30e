-- The calls that stand, those that are too long left out.
-- KEYS: what stands. ARGV: how many at most, how many bytes a call may have.
local found = {}
if redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[1]) then
  for _, text in ipairs(redis.call('HVALS', KEYS[1])) do
    if #text <= tonumber(ARGV[2]) then table.insert(found, text) end
  end
end
return found
