-- Puts an agent's answer where whoever asked looks for it, and takes the call out, in one step.
-- KEYS: the agent's list, the answers to the call, what is left of a list that came with it.
-- ARGV: the call; the agent; its answer, empty if nobody is to have one; milliseconds for which it
-- is kept.
if #ARGV[3] > 0 then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
redis.call('LREM', KEYS[1], 0, ARGV[1])
redis.call('DEL', KEYS[3])
return {}
