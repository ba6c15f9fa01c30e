-- Moves pushed messages to a list of the taker, behind a mark, until it has stored them.
-- KEYS: the pushed messages, the taker's list.
-- ARGV: list, set or zset; most messages; bytes that are enough; most bytes of a message (a longer
--       one is cut to one byte more); the mark.
-- Returns the mark and the messages, or nothing. A batch that was not removed comes again, with its
-- mark.
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
