-- An agent names the addresses that it fetches from, and learns which of them other agents use.
-- a.new: addresses it asks about. a.gone: addresses where it has no host any more.
-- a.heard: shared addresses where it uses the ledger now. a.mine: addresses it used before the server
-- lost its state. a.complete: in the era a.known it has named all its addresses.
-- States of a.new: 0 ask again; 1 no other agent; 2 other agents, which know of this one.
-- News: at most 500 addresses a call.
local row, refusal = own()
if refusal then return answer(refusal) end
local prefix = string.sub(CRAWL, 1, -#'crawl' - 1)
local AT, ERAS = prefix .. 'addresses', prefix .. 'address-eras'
local function news_of(number) return prefix .. 'address-news:' .. number end

-- After a loss all agents must be heard of first: a cut-off agent goes on where it was alone until its
-- lease ends. Agents that held units claim them again.
if not crawl.met and (all_held() or crawl.open and crawl.claims <= now) then
  crawl.met = true
  save()
end
local counts, all = {}, crawl.met
for _, each in pairs(everyone()) do
  -- A stopped agent uses no address once its fetches and delays are over; it asks again when it is back.
  local rests = each.incarnation == '' and each.quiet and each.quiet <= now
  counts[each.number] = counted(each) and not rests
  if counts[each.number] and each.number ~= row.number and each.incarnation ~= '' then
    all = all and redis.call('HGET', ERAS, each.number) == tostring(crawl.era)
  end
end

-- The other agents at an address; whether this agent is there; whether a stale entry is left, which
-- would count again if its agent came back.
local function there(address)
  local others, present, vain = {}, false, false
  for number in string.gmatch(redis.call('HGET', AT, address) or '', '%d+') do
    number = tonumber(number)
    if number == row.number then
      present = true
    elseif counts[number] then
      table.insert(others, number)
    else
      vain = true
    end
  end
  return others, present, vain
end

local function enter(address, others)
  redis.call('HSET', AT, address, table.concat({row.number, unpack(others)}, ','))
end

for _, address in ipairs(a.heard) do redis.call('SREM', news_of(row.number), address) end
for _, address in ipairs(a.gone) do
  local others, present = there(address)
  if #others == 0 then
    redis.call('HDEL', AT, address)
  elseif present then
    redis.call('HSET', AT, address, table.concat(others, ','))
  end
  redis.call('SREM', news_of(row.number), address)
end
for _, address in ipairs(a.mine) do
  local others = there(address)
  for _, number in ipairs(others) do
    -- Both wait for the other's word, as if they had just come.
    redis.call('SADD', news_of(number), address)
    redis.call('SADD', news_of(row.number), address)
  end
  enter(address, others)
end
if a.complete and a.known == crawl.era then redis.call('HSET', ERAS, row.number, tostring(crawl.era)) end

local states = {}
for i, address in ipairs(a.new) do
  local others, present, vain = there(address)
  local known = true
  for _, number in ipairs(others) do
    if not present then redis.call('SADD', news_of(number), address) end
    known = known and redis.call('SISMEMBER', news_of(number), address) == 0
  end
  if vain or not present then enter(address, others) end
  states[i] = not (all and known) and 0 or #others == 0 and 1 or 2
end
put(row)
local news = redis.call('SRANDMEMBER', news_of(row.number), 500)
return answer('ok', {ends = row.ends, states = states, news = news})
