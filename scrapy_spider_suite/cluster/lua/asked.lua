-- Returns the calls for an agent, which stay until they are answered; removes too long calls.
-- KEYS: the list. ARGV: most calls, most bytes of a call.
local found, gone = {0}, 0
for _, text in ipairs(redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)) do
  if #text <= tonumber(ARGV[2]) then
    table.insert(found, text)
  else
    gone = gone + redis.call('LREM', KEYS[1], 0, text)
  end
end
found[1] = gone
return found
