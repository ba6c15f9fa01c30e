-- A page of the tasks of a fetcher. a: name, cursor, most. Returns the next cursor ('0': no more), the
-- tasks, and for each the place of what is known of its hosts.
local found = redis.call('HSCAN', tasks_of(a.name), a.cursor, 'COUNT', a.most)
local tasks, places = {}, {}
for i = 2, #found[2], 2 do
  tasks[i / 2] = found[2][i]
  places[i / 2] = redis.call('HGET', STATES, cmsgpack.unpack(found[2][i])[2]) or ''
end
return {found[1], tasks, places}
