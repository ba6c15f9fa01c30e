-- Sends a piece of a list on its way to an agent, if there is room: 1, or 0.
-- KEYS: its pieces. ARGV: how many may be on the way, milliseconds for which they are kept, the
-- piece.
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {0} end
redis.call('RPUSH', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1}
