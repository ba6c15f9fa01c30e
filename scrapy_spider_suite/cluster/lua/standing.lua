-- Returns the standing calls, without too long ones.
-- KEYS: the standing calls. ARGV: most calls, most bytes of a call.
local found = {}
if redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[1]) then
  for _, text in ipairs(redis.call('HVALS', KEYS[1])) do
    if #text <= tonumber(ARGV[2]) then table.insert(found, text) end
  end
end
return found
