"""How a person acts on a job: actions left in a folder, carried out, answered and written down.

`actions` says what an action and an answer are, `folder` how they are handed over, `audit` where
all of them are kept, `operator` carries them out, in a running crawl or (`site`) on a job that
none is using. `asking` is the side of the command line. No port, no signal: whoever may write into
the job directory may act on the job, from another container too.
"""
