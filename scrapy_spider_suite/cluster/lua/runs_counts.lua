-- Returns the queues with their weights, counts by name, and whether the seeds are in the queue.
return {flat, redis.call('HGETALL', COUNTS), redis.call('HGET', P .. 'sources', 'seeds')}
