-- The answers of some agents, one by one; 0 for one that has not answered.
-- KEYS: the answers to the call. ARGV: bytes of an answer beyond which it is cut (to one more than
-- that), then the agents.
local found = {}
for number = 2, #ARGV do
  local answer = redis.call('HGET', KEYS[1], ARGV[number])
  found[number - 1] = answer and string.sub(answer, 1, ARGV[1] + 1) or 0
end
return found
