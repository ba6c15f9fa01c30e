-- Keeps a call for agents that come later; it replaces an earlier call about the same.
-- KEYS: the standing calls. ARGV: the subject; the call, empty to remove it; most calls.
-- Returns 1 if there are too many.
if #ARGV[2] == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3])
  and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return {1}
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return {0}
