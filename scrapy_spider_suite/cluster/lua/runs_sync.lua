-- A fetcher reports, and gets tasks. A call that comes again only answers, with the same tasks.
-- a: name, incarnation, call, delay (ms after its lease until others may have its tasks), again (queue,
-- slot, id: what the server may have forgotten to have given it), done (ids),
-- failed (id, progress, ms until it is tried again or 0: set aside, reason), returned (id, progress, ms
-- until others may have it), progress (id, bytes), states (slot, place: what is known of its hosts), more
-- (slots whose next run it wants), drawn (a number for each of these), want (a number for each further
-- run), takes (whether it has room for any); drawn numbers are from 0 to below 1.
-- Returns 'ok', the tasks, for each the place of what is known of its hosts, and: fetchers that had room
-- lately, slots that fetchers hold, free slots of all queues; or 'fenced'.
local text = redis.call('HGET', MEMBERS, a.name)
local row = text and parsed(text, MEMBERS) or nil
if not row or row.incarnation ~= a.incarnation or not counted(row) or over(row) then
  return {'fenced'}
end
-- After a loss of what the server had, others may have what seems to be free.
local crawl = parsed(redis.call('GET', CRAWL), CRAWL)
local giving = crawl.claims <= now and crawl.run == server()
local known = redis.call('HGET', CALLS, a.name)
local last = known and cmsgpack.unpack(known) or {'', 0, 0, {}}
local given, TASKS, HELD = last[4], tasks_of(a.name), held_by(a.name)

local function task_of(id)
  local packed = redis.call('HGET', TASKS, id)
  return packed and cmsgpack.unpack(packed) or nil
end

local function finish(id, task, state)
  redis.call('HDEL', TASKS, id)
  count(task[1], task[3], 'running', state)
  release(a.name, task[2])
end

-- One of *known* queues by weight: weighted fair scheduling.
local function draw(known, drawn)
  local total = 0
  for _, queue in ipairs(known) do total = total + weights[queue] end
  local at = drawn * total
  for _, queue in ipairs(known) do
    at = at - weights[queue]
    if at < 0 then return queue end
  end
  return known[#known]
end

-- Make the oldest run of *queue* and *slot* a task.
local function give(queue, slot)
  local run = pop(queue, slot)
  local id = string.sub(run, 1, 8)
  local started = redis.call('HGET', STARTED, id)
  local progress, failures = '', 0
  if started then
    progress, failures = unpack(cmsgpack.unpack(started))
    redis.call('HDEL', STARTED, id)
  end
  redis.call('HSET', TASKS, id, cmsgpack.pack({queue, slot, run, progress, failures}))
  count(queue, run, 'queued', 'running')
  redis.call('HINCRBY', HELD, slot, 1)
  given[#given + 1] = id
end

local function give_more(slot, drawn)
  if redis.call('HGET', HOLDERS, slot) ~= a.name then return end
  local found = with_runs(slot)
  if found[1] then give(draw(found, drawn), slot) end
end

-- Give what was given before, if it is the next run of its slot, which nobody else has.
local function give_again(queue, slot, id)
  local holder = redis.call('HGET', HOLDERS, slot)
  if holder and holder ~= a.name or first_of(queue, slot) ~= id then return end
  give(queue, slot)
  hold(a.name, slot)
end

-- Give runs of free slots: a queue by weight among those that have some, then any of its slots.
local function give_any(draws)
  local free = {}
  for _, queue in ipairs(queues) do free[queue] = redis.call('SCARD', free_of(queue)) end
  for _, drawn in ipairs(draws) do
    local known = {}
    for _, queue in ipairs(queues) do
      if free[queue] > 0 then known[#known + 1] = queue end
    end
    if not known[1] then return end
    local queue = draw(known, drawn)
    local slot = redis.call('SPOP', free_of(queue))
    free[queue] = free[queue] - 1
    give(queue, slot)
    redis.call('HSET', HOLDERS, slot, a.name)
    for _, other in ipairs(queues) do
      if free[other] > 0 then free[other] = free[other] - redis.call('SREM', free_of(other), slot) end
    end
  end
end

if last[1] ~= a.incarnation or last[2] < a.call then
  given = {}
  for _, each in ipairs(a.states) do
    local slot, place = unpack(each)
    if redis.call('HGET', HOLDERS, slot) == a.name then
      local before = redis.call('HGET', STATES, slot)
      use_blob(place, 1)
      if before then use_blob(before, -1) end
      redis.call('HSET', STATES, slot, place)
    end
  end
  for _, each in ipairs(a.again) do give_again(unpack(each)) end
  for _, id in ipairs(a.done) do
    local task = task_of(id)
    if task then
      finish(id, task, 'done')
      use_run(task[3], -1)
    end
  end
  for _, each in ipairs(a.failed) do
    local id, progress, wait, reason = unpack(each)
    local task = task_of(id)
    if task then
      finish(id, task, wait > 0 and 'later' or 'aside')
      local failures = task[5] + 1
      if wait > 0 then
        redis.call('HSET', STARTED, id, cmsgpack.pack({progress, failures}))
        redis.call('ZADD', LATER, now + wait, cmsgpack.pack({task[1], task[2], task[3]}))
      else
        redis.call('HSET', ASIDE, id,
          cmsgpack.pack({task[1], task[2], task[3], progress, failures, reason}))
      end
    end
  end
  for _, each in ipairs(a.returned) do
    local id, progress, wait = unpack(each)
    local task = task_of(id)
    if task then
      finish(id, task, 'later')
      redis.call('HSET', STARTED, id, cmsgpack.pack({progress, task[5]}))
      redis.call('ZADD', LATER, now + wait, cmsgpack.pack({task[1], task[2], task[3]}))
    end
  end
  for _, each in ipairs(a.progress) do
    local task = task_of(each[1])
    if task then
      task[4] = each[2]
      redis.call('HSET', TASKS, each[1], cmsgpack.pack(task))
    end
  end
  for _, id in ipairs(redis.call('LRANGE', added_to(a.name), 0, 15)) do
    redis.call('LPOP', added_to(a.name))
    if redis.call('HEXISTS', TASKS, id) == 1 then given[#given + 1] = id end
  end
  if giving then
    for i, slot in ipairs(a.more) do give_more(slot, a.drawn[i]) end
    give_any(a.want)
  end
  save_counts()
  redis.call('HSET', CALLS, a.name, cmsgpack.pack({a.incarnation, a.call, a.delay, given}))
end
if redis.call('EXISTS', TASKS) == 1 then
  redis.call('ZADD', FETCHERS, row.ends > 0 and row.ends + a.delay or '+inf', a.name)
else
  redis.call('ZREM', FETCHERS, a.name)
end
if a.takes then redis.call('ZADD', CALLED, now, a.name) else redis.call('ZREM', CALLED, a.name) end
redis.call('ZREMRANGEBYSCORE', CALLED, '-inf', now - 10000)
local free = 0
for _, queue in ipairs(queues) do free = free + redis.call('SCARD', free_of(queue)) end
local tasks, places = {}, {}
for _, id in ipairs(given) do
  local task = redis.call('HGET', TASKS, id)
  if task then  -- not given again, and done
    tasks[#tasks + 1] = task
    places[#tasks] = redis.call('HGET', STATES, cmsgpack.unpack(task)[2]) or ''
  end
end
return {'ok', tasks, places, {redis.call('ZCARD', CALLED), redis.call('HLEN', HOLDERS), free}}
