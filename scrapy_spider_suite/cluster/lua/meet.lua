-- An agent says from which addresses it is about to fetch, and learns which of them others fetch
-- from, too; those are told. a.new: addresses that it asks about; a.gone: those that it has no host
-- at any more; a.heard: of what it was told, those that it goes by now; a.mine: those where it goes
-- on, alone or by the ledger, as before the server lost what it knew; a.complete: in the era a.known
-- it has named all that it fetches from. Answers for each new one: 0 ask again, 1 nobody else does,
-- 2 others do, and know that this one does. Of what it is to hear, 500 at a time.
local row, refusal = own()
if refusal then return answer(refusal) end
local prefix = string.sub(CRAWL, 1, -#'crawl' - 1)
local AT, ERAS = prefix .. 'addresses', prefix .. 'address-eras'
local function news_of(number) return prefix .. 'address-news:' .. number end

-- Agents of which Redis has lost all have to be heard of first: one that is cut off goes on where it
-- was alone for as long as its lease lasts. Who held anything claims it again.
if not crawl.met and (all_held() or crawl.open and crawl.claims <= now) then
  crawl.met = true
  save()
end
local counts, all = {}, crawl.met
for _, each in pairs(everyone()) do
  -- Who has stopped is nowhere once all is over that it began: when it is back it asks anew.
  local rests = each.incarnation == '' and each.quiet and each.quiet <= now
  counts[each.number] = counted(each) and not rests
  if counts[each.number] and each.number ~= row.number and each.incarnation ~= '' then
    all = all and redis.call('HGET', ERAS, each.number) == tostring(crawl.era)
  end
end

-- Those that fetch from an address: others, and whether this agent is one; whether anybody stands
-- there in vain, who would be taken for present if it came back.
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
    -- They wait for each other's word, as if both had come just now.
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
