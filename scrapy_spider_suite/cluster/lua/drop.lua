-- Removes entries that were read from a stream of the agent. See fence.lua.
-- KEYS[2]: the stream. ARGV: its group, then the entries.
if fenced() then return FENCED end
redis.call('XACK', KEYS[2], unpack(ARGV, 3))
return redis.call('XDEL', KEYS[2], unpack(ARGV, 4))
