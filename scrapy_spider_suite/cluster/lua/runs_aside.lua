-- A page of the runs that are set aside. a: cursor, most. Returns the next cursor ('0': no more), the runs.
local found = redis.call('HSCAN', ASIDE, a.cursor, 'COUNT', a.most)
local runs = {}
for i = 2, #found[2], 2 do runs[i / 2] = found[2][i] end
return {found[1], runs}
