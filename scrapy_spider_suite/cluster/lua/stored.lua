-- Removes a batch that was taken, if it has the mark.
-- KEYS: the taker's list. ARGV: the mark.
if redis.call('lindex', KEYS[1], 0) == ARGV[1] then redis.call('del', KEYS[1]) end
return {}
