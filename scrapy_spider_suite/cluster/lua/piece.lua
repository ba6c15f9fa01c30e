-- Removes the piece that an agent has written to disk, and returns the next piece, if any.
-- KEYS: the pieces. ARGV: the first bytes of the written piece, or empty; most bytes of a piece (a
-- longer one is cut to one byte more).
local head = redis.call('LINDEX', KEYS[1], 0)
if head and #ARGV[1] > 0 and string.sub(head, 1, #ARGV[1]) == ARGV[1] then
  redis.call('LPOP', KEYS[1])
  head = redis.call('LINDEX', KEYS[1], 0)
end
return head and {string.sub(head, 1, ARGV[2] + 1)} or {}
