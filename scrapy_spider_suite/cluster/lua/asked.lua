-- The calls that wait for an agent, which stay until they are answered; what is too long goes.
-- KEYS: the list. ARGV: how many at most, how many bytes a call may have.
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
