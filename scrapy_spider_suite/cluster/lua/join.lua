-- A process takes the place of its name, unless another process has it.
local function lives()
  for _, row in pairs(everyone()) do
    if row.name ~= a.name and alive(row, a.silence) then return true end
  end
end

local function owners()  -- how many others there are
  local count = 0
  for _, row in pairs(crawl and everyone() or {}) do
    if row.name ~= a.name and row.state == 'active' then count = count + 1 end
  end
  return count
end

if math.abs(now - a.wall) > a.skew then return answer('clock') end

local first = not crawl
if first then
  crawl = {
    id = a.id ~= '' and a.id or a.fresh, epoch = 0, version = 0, era = 0, moves = 0, claims = 0,
    rows = 0, numbers = 0, round = 0, sweep = 0, sums = '', ended = false, grace = a.grace,
    protocol = a.protocol, fixed = a.fixed, terms = 0, founding = false, run = run, open = false,
  }
end

local row = not first and member(a.name) or nil
local busy = not first and lives()
-- An agent without work that comes after the end must still hear of the end.
local late = crawl and crawl.ended and a.idle and row and row.job == a.job or false
local other = not first and a.id ~= '' and a.id ~= crawl.id
if not first then
  if other and not (crawl.founding and now < crawl.claims) then return answer('other-crawl') end
  if busy and crawl.protocol ~= a.protocol then
    return answer('protocol', {protocol = crawl.protocol})
  end
  if busy and crawl.fixed ~= a.fixed then return answer('fixed', {fixed = crawl.fixed}) end
  if busy and crawl.ended and (not late or closing(a.name, a.silence)) then
    return answer('ending')
  end
end
if row then
  if row.incarnation == a.incarnation then
    if a.call <= row.call then return answer('late') end
  elseif alive(row, a.silence) and row.folder ~= a.folder then
    return answer('name', {heard = row.heard})
  end
  if row.job ~= a.job and counted(row) then return answer('other-job') end
end

local number = row and row.job == a.job and row.number or 0
if number == 0 then
  local taken = {}
  if not first then
    for _, other in pairs(everyone()) do taken[other.number] = true end
  end
  number = a.number
  if number == 0 or taken[number] then number = crawl.numbers + 1 end
  if number >= UNITS then return answer('full') end
end

if a.most > 0 and owners() >= a.most then return answer('most') end

-- Writes begin here.
if first then
  redis.call('DEL', MEMBERS, FACTS)
  begin_era(a.silence)
  if a.id == '' then
    -- If the server has just been started, the agents of a crawl that it lost may be on their way.
    crawl.founding = uptime < a.silence
    crawl.claims, crawl.open = crawl.founding and now + a.silence or now, true
    if not crawl.founding then
      local two = string.char(math.floor(number / 256), number % 256)
      redis.call('SET', HOLDERS, string.rep(two, UNITS))
    end
  end
elseif other then
  crawl.id, crawl.grace, crawl.founding = a.id, a.grace, false
  begin_era(a.silence)
end
if not busy then
  -- A silent agent that comes back must join again, with the present terms.
  if crawl.protocol ~= a.protocol or crawl.fixed ~= a.fixed then crawl.terms = crawl.terms + 1 end
  crawl.protocol, crawl.fixed, crawl.grace = a.protocol, a.fixed, a.grace
  crawl.ended = late
end

local same = row and row.job == a.job
local kept = same and row.state == 'active' and not over(row)
if not kept or row.weight ~= a.weight then advance() else crawl.version = crawl.version + 1 end
crawl.sums = ''
row = {
  name = a.name, number = number, incarnation = a.incarnation, call = a.call, job = a.job,
  folder = a.folder, terms = crawl.terms, weight = a.weight, address = a.address, state = 'active', since = kept and row.since or now,
  ends = a.grace > 0 and now + a.grace or 0, heard = now,
  idle = false, sent = 0, received = 0, activity = 0, round = 0, posted = 0, late = crawl.ended,
}
put(row)
redis.call('HDEL', FACTS, a.name)
crawl.numbers = math.max(crawl.numbers, number)
crawl.rows = redis.call('HLEN', MEMBERS)
if row.ends > 0 and (crawl.sweep == 0 or row.ends < crawl.sweep) then crawl.sweep = row.ends end
save()
return answer('ok', {number = number, kept = kept or false, ends = row.ends})
