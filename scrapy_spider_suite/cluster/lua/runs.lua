-- What the scripts of the run queue share. Before it: world.lua and rows.lua.
-- KEYS: queues, members; other keys begin as the first one. ARGV[1]: the arguments, packed.
--
-- Of a queue and a slot, the next two runs lie in a hash of 64 slots, which the server packs while no value
-- has more than 64 bytes; further ones lie in a list, and so do those with their rows inline, and all that
-- are behind one of these. Most slots have no list.
-- A run given to a fetcher is a task; while a fetcher has tasks of a slot, it holds the slot. A slot with
-- runs that nobody holds is free in its queue. Of a run that was a task before, *started* has its progress
-- and the number of its failures. No loop is longer than the entries of a call, 16 of each kind, 16 blobs
-- of each of these, or 64 places, or the 8 queues, allow.
local QUEUES, MEMBERS = unpack(KEYS)
local P = string.sub(QUEUES, 1, -#'queues' - 1)
local HOLDERS, FETCHERS, CALLS, CALLED = P .. 'holders', P .. 'fetchers', P .. 'calls', P .. 'called'
local STARTED, LATER, ASIDE, COUNTS = P .. 'started', P .. 'later', P .. 'aside', P .. 'counts'
local INPUTS, MANIFESTS, STATES = P .. 'inputs', P .. 'manifests', P .. 'states'
local BLOBS, LITTER = P .. 'blobs', P .. 'litter'
local REGISTRY = string.sub(MEMBERS, 1, -#'members' - 1)
local CRAWL, UNITS_HELD = REGISTRY .. 'crawl', REGISTRY .. 'holders'
local PLACED = 31  -- bytes of a run with a place
local a = cmsgpack.unpack(ARGV[1])

local queues, weights = {}, {}
local flat = redis.call('HGETALL', QUEUES)
for i = 1, #flat, 2 do
  queues[#queues + 1] = flat[i]
  weights[flat[i]] = tonumber(flat[i + 1])
end
table.sort(queues)

local function free_of(queue) return P .. 'free:' .. queue end
local function next_of(queue, slot) return P .. 'next:' .. queue .. ':' .. math.floor(slot / 64) end
local function list_of(queue, slot) return P .. 'list:' .. queue .. ':' .. slot end
local function tasks_of(name) return P .. 'tasks:' .. name end
local function held_by(name) return P .. 'held:' .. name end
local function added_to(name) return P .. 'added:' .. name end
local function inputs_of(partition) return P .. 'inputs:' .. partition end

-- A place begins with its blob. A blob that nothing uses is litter since then: its file is to be
-- removed, but not before a server that forgets its last second would know of that.
local function use_blob(place, change)
  local blob = string.sub(place, 1, 8)
  local uses = redis.call('HINCRBY', BLOBS, blob, change)
  if uses <= 0 then
    redis.call('HDEL', BLOBS, blob)
    redis.call('ZADD', LITTER, now, blob)
  elseif uses == change then
    redis.call('ZREM', LITTER, blob)
  end
end

-- Behind 10 bytes of id and number, a run has 1 and its place, or 0 and its rows.
local function use_run(run, change)
  if string.byte(run, 11) == 1 then use_blob(string.sub(run, 12), change) end
end

-- Runs and URLs of each queue by state, and other numbers, written once.
local changes = {}
local function note(name, change) changes[name] = (changes[name] or 0) + change end

local function count(queue, run, before, after)
  local urls = string.byte(run, 9) * 256 + string.byte(run, 10)
  if before then
    note('runs:' .. before .. ':' .. queue, -1)
    note('urls:' .. before .. ':' .. queue, -urls)
  end
  if after then
    note('runs:' .. after .. ':' .. queue, 1)
    note('urls:' .. after .. ':' .. queue, urls)
  end
end

local function save_counts()
  for name, change in pairs(changes) do
    if change ~= 0 then redis.call('HINCRBY', COUNTS, name, change) end
  end
end

-- The queues that have runs of *slot*.
local function with_runs(slot)
  local found = {}
  for _, queue in ipairs(queues) do
    if redis.call('HEXISTS', next_of(queue, slot), slot) == 1 then found[#found + 1] = queue end
  end
  return found
end

local function has_place(run) return #run == PLACED and string.byte(run, 11) == 1 end

-- Put a run into its queue, as the next of its slot (*first*) or as the last.
local function push(queue, slot, run, first)
  local NEXT, LIST = next_of(queue, slot), list_of(queue, slot)
  local before, placed = redis.call('HGET', NEXT, slot), has_place(run)
  if first and before and placed then
    if #before > PLACED then redis.call('LPUSH', LIST, string.sub(before, PLACED + 1)) end
    redis.call('HSET', NEXT, slot, run .. string.sub(before, 1, PLACED))
  elseif first and before then
    for at = #before - PLACED + 1, 1, -PLACED do
      redis.call('LPUSH', LIST, string.sub(before, at, at + PLACED - 1))
    end
    redis.call('LPUSH', LIST, run)
    redis.call('HSET', NEXT, slot, '')
  elseif placed and (not before or #before == PLACED) and redis.call('EXISTS', LIST) == 0 then
    redis.call('HSET', NEXT, slot, (before or '') .. run)
  else
    redis.call('RPUSH', LIST, run)
    if not before then redis.call('HSET', NEXT, slot, '') end
  end
  if redis.call('HEXISTS', HOLDERS, slot) == 0 then redis.call('SADD', free_of(queue), slot) end
end

-- The id of the next run of *queue* and *slot*, if there is one.
local function first_of(queue, slot)
  local before = redis.call('HGET', next_of(queue, slot), slot)
  local run = before == '' and redis.call('LINDEX', list_of(queue, slot), 0) or before
  return run and string.sub(run, 1, 8)
end

-- Take the next run of *queue* and *slot*.
local function pop(queue, slot)
  local NEXT, LIST = next_of(queue, slot), list_of(queue, slot)
  local before = redis.call('HGET', NEXT, slot)
  local run, left = string.sub(before, 1, PLACED), string.sub(before, PLACED + 1)
  if run == '' then run = redis.call('LPOP', LIST) end
  if left ~= '' or redis.call('EXISTS', LIST) == 1 then
    redis.call('HSET', NEXT, slot, left)
  else
    redis.call('HDEL', NEXT, slot)
  end
  return run
end

-- A fetcher has *slot*, which is free in no queue then.
local function hold(name, slot)
  redis.call('HSET', HOLDERS, slot, name)
  for _, queue in ipairs(queues) do redis.call('SREM', free_of(queue), slot) end
end

-- A fetcher has one task of *slot* less: the slot may be free.
local function release(name, slot)
  if redis.call('HINCRBY', held_by(name), slot, -1) > 0 then return end
  redis.call('HDEL', held_by(name), slot)
  redis.call('HDEL', HOLDERS, slot)
  for _, queue in ipairs(with_runs(slot)) do redis.call('SADD', free_of(queue), slot) end
end
