-- What the row of a member says. Times are milliseconds.
local now = clock()

local function parsed(text, key)
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  error('suite-damaged ' .. key .. ' ', 0)
end

-- Has its lease ended? Until then nobody may take what it holds. One of 0 has no end.
local function over(row) return row.ends > 0 and row.ends <= now end

-- Does it take part: is it to be waited for before the crawl ends?
local function counted(row)
  return row.state == 'active' or row.state == 'leaving' or (row.state == 'removed' and not over(row))
end

