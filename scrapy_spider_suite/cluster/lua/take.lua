-- Takes messages that were pushed: what nobody else gets then lies in a list of the taker's own,
-- behind a mark, until it has stored them.
-- KEYS: where they are pushed, the taker's list.
-- ARGV: list, set or zset; how many at most; bytes after which it is enough; bytes of a message
--       beyond which it is cut (to one more than that); the mark.
-- Answers the mark and the messages, nothing if there are none. What was taken before, and was not
-- removed since, comes again with the mark that it has.
local source, taken = KEYS[1], KEYS[2]
local count, enough, longest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function next_one()
  if ARGV[1] == 'set' then return redis.call('spop', source) end
  if ARGV[1] == 'zset' then return redis.call('zpopmax', source)[1] end
  return redis.call('lpop', source)
end

if redis.call('exists', taken) == 0 then
  local bytes, number = 0, 0
  while number < count and bytes < enough do
    local message = next_one()
    if not message then break end
    if number == 0 then redis.call('rpush', taken, ARGV[5]) end
    message = string.sub(message, 1, longest + 1)
    redis.call('rpush', taken, message)
    bytes, number = bytes + #message, number + 1
  end
end
return redis.call('lrange', taken, 0, -1)
