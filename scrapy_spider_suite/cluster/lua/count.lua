-- Returns the length of a list or sorted set; 0 for other types.
-- KEYS: the list or sorted set.
local kind = redis.call('type', KEYS[1]).ok
if kind == 'list' then return {redis.call('llen', KEYS[1])} end
if kind == 'zset' then return {redis.call('zcard', KEYS[1])} end
return {0}
