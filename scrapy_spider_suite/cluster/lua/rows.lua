-- The rows of members. Times are milliseconds.
local now = clock()

local function parsed(text, key)
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  error('suite-damaged ' .. key .. ' ', 0)
end

-- Whether its lease has ended; until then no other agent may take its units. 0: no end.
local function over(row) return row.ends > 0 and row.ends <= now end

-- Whether the crawl's end waits for it.
local function counted(row)
  return row.state == 'active' or row.state == 'leaving' or (row.state == 'removed' and not over(row))
end

