-- Returns the answers of some agents in order; 0: no answer yet.
-- KEYS: the answers to the call.
-- ARGV: most bytes of an answer (a longer one is cut to one byte more), then the agents.
local found = {}
for number = 2, #ARGV do
  local answer = redis.call('HGET', KEYS[1], ARGV[number])
  found[number - 1] = answer and string.sub(answer, 1, ARGV[1] + 1) or 0
end
return found
