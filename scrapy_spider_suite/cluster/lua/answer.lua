-- Stores an agent's answer for the caller, and removes the call, in one step.
-- KEYS: the agent's list, the answers to the call, the rest of a list that came with it.
-- ARGV: call; agent; answer, empty for none; milliseconds for which the answer is kept.
if #ARGV[3] > 0 then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
redis.call('LREM', KEYS[1], 0, ARGV[1])
redis.call('DEL', KEYS[3])
return {}
