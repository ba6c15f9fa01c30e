-- Units change their holder. ARGV[2]: the units, two bytes each, ascending.
-- Returns the units that the new holder holds now, also if it did before.
--   give:  from the caller to the member number a.to
--   seize: to the caller, from holders that may not fetch any more
--   claim: to the caller, which held the units at a.at, before the server lost its state; no other
--          agent can hold them if its lease did not lapse
local row, refusal = own()
if refusal then return answer(refusal) end
if a.how ~= 'claim' and a.epoch ~= crawl.epoch then return answer('epoch') end

local to, from = row.number, {}
if a.how == 'give' then
  to, from[row.number] = a.to, true
elseif a.how == 'seize' then
  from[0] = now >= crawl.claims and crawl.open
else
  from[0] = a.live or row.since <= a.at or now >= crawl.claims
end

local numbers = {}
if a.how ~= 'claim' then
  for _, each in pairs(everyone()) do numbers[each.number] = each end
end
local target = a.how == 'claim' and row or numbers[to]
if not target or (target.state ~= 'active' and a.how ~= 'claim') then return answer('target') end

local function free(holder)
  if holder == 0 or a.how ~= 'seize' then return from[holder] end
  local each = numbers[holder]
  return not each or not counted(each)
end

local two = string.char(math.floor(to / 256), to % 256)
local holders, done = redis.call('GET', HOLDERS), {}
local start, length, changed = 0, 0, false
local function write()
  if length > 0 then redis.call('SETRANGE', HOLDERS, 2 * start, string.rep(two, length)) end
end
for i = 1, #ARGV[2], 2 do
  local high, low = string.byte(ARGV[2], i, i + 1)
  local unit = 256 * high + low
  high, low = string.byte(holders, 2 * unit + 1, 2 * unit + 2)
  local holder = 256 * high + low
  if holder == to or free(holder) then
    table.insert(done, string.sub(ARGV[2], i, i + 1))
    changed = changed or holder ~= to
    if unit ~= start + length then
      write()
      start, length = unit, 0
    end
    length = length + 1
  end
end
write()
put(row)
if changed then crawl.moves = crawl.moves + 1 end
save()
return answer('ok', {ends = row.ends}, table.concat(done))
