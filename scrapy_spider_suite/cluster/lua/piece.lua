-- Takes out the piece that an agent has written to its disk, and answers the next one, if any.
-- KEYS: its pieces. ARGV: the first bytes of the one that it has, empty if none; bytes beyond which
-- a piece is cut (to one more than that).
local head = redis.call('LINDEX', KEYS[1], 0)
if head and #ARGV[1] > 0 and string.sub(head, 1, #ARGV[1]) == ARGV[1] then
  redis.call('LPOP', KEYS[1])
  head = redis.call('LINDEX', KEYS[1], 0)
end
return head and {string.sub(head, 1, ARGV[2] + 1)} or {}
