-- An agent goes. 'leaving': it hands over its units; 'left': it has done so; 'resting': it comes back,
-- and in a.quiet milliseconds its last fetch, and the delay of each address, are over.
local row, refusal = own()
if refusal then return answer(refusal) end

local function holds(number)
  local holders = redis.call('GET', HOLDERS)
  local two = string.char(math.floor(number / 256), number % 256)
  local at = string.find(holders, two, 1, true)
  while at and at % 2 == 0 do at = string.find(holders, two, at + 1, true) end
  return at ~= nil
end

local function successors()
  for _, each in pairs(everyone()) do
    if each.name ~= row.name and each.state == 'active' then return true end
  end
end

if a.to == 'leaving' then
  if row.state == 'active' and not successors() then return answer('alone') end
  if row.state == 'active' then
    row.state = 'leaving'
    advance()
  end
elseif a.to == 'left' then
  if row.state == 'active' or holds(row.number) then return answer('holds') end
  row.state = 'left'  -- its process may ask again if it got no answer
  advance()
else
  row.incarnation, row.quiet = '', now + a.quiet
  crawl.version = crawl.version + 1
end
put(row)
save()
return answer('ok', {ends = row.ends, state = row.state})
