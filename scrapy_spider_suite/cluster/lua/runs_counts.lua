-- Returns the queues, counts by name, and whether the seeds are in the queue.
return {queues, redis.call('HGETALL', COUNTS), redis.call('HGET', P .. 'sources', 'seeds')}
