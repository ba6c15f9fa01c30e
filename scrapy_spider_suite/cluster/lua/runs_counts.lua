-- Returns the queues, and counts by name.
return {queues, redis.call('HGETALL', COUNTS)}
