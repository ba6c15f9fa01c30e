-- Sends a piece of a list to an agent, if there is room: 1, or 0.
-- KEYS: the pieces. ARGV: most pieces under way, milliseconds for which they are kept, the piece.
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {0} end
redis.call('RPUSH', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1}
