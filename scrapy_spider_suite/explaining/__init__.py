"""Why a URL is where it is, and what would become of one."""
