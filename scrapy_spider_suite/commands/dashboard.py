"""``scrapy dashboard``: a live page about a crawl, in the browser."""

from __future__ import annotations

import argparse
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

PORT = 8470
LOOK_TOKEN, ACT_TOKEN = "DASHBOARD_TOKEN", "DASHBOARD_ACT_TOKEN"  # environment variables
EPILOG = f"""\
A token is a line of at least 16 characters. Whoever opens the page from another machine gives it
once; {LOOK_TOKEN} and {ACT_TOKEN} of the environment stand for the files.

Examples:
  scrapy dashboard crawls/news
  scrapy dashboard redis://10.0.0.1/0 --crawl news
  scrapy dashboard crawls/news --host 0.0.0.0 --token look.txt --act-token act.txt

Exit codes: 0 ended by Ctrl-C, 2 wrong usage or an unusable job."""


class Command(base.Command):
    """See ``scrapy dashboard --help``."""

    name = "dashboard"
    arguments = "[JOBDIR|redis://...] [options]"
    summary = "Show a crawl live in the browser"
    faults = (OSError,)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.allow_abbrev = False
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument(
            "--host", metavar="ADDRESS", default="127.0.0.1",
            help="address to listen on (default: 127.0.0.1); any other than loopback needs --token",
        )  # fmt: skip
        parser.add_argument(
            "--port", metavar="N", type=int, default=PORT, help=f"0: any free one ({PORT})"
        )
        parser.add_argument("--token", metavar="FILE", help="whoever looks must know this token")
        parser.add_argument(
            "--act-token", metavar="FILE",
            help="whoever knows this token may pause, resume, block, change delays, add URLs",
        )  # fmt: skip
        base.add_crawl(parser)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Serve until Ctrl-C."""
        settings: Any = self.settings
        job = args[0] if args else settings["JOBDIR"]
        if unknown := [word for word in args if word.startswith("-")]:
            text = f"unrecognized arguments: {' '.join(unknown)}"
            raise UsageError(text, print_help=False)
        if len(args) > 1:
            raise UsageError("one job at a time", print_help=False)
        if not job:
            raise UsageError("which job? give its JOBDIR or redis://..., or set JOBDIR",
                             print_help=False)  # fmt: skip
        if opts.crawl:
            settings.set("SUITE_CRAWL_NAME", opts.crawl, priority="cmdline")
        self.exit_with(lambda: self._serve(str(job), opts))

    def _serve(self, job: str, opts: argparse.Namespace) -> int:
        from twisted.internet import reactor as installed

        from scrapy_spider_suite.dashboard import access, acts, questions, server
        from scrapy_spider_suite.operate.crawl_view import open_view
        from scrapy_spider_suite.operate.executors.agent_rows import ask_agents

        if not 0 <= opts.port < 1 << 16:
            raise UsageError(f"--port {opts.port}: expected 0 to 65535", print_help=False)
        look = access.read_token(opts.token, LOOK_TOKEN)
        rights = access.Access(look, access.read_token(opts.act_token, ACT_TOKEN))
        if look is None and not access.is_loopback(opts.host):
            raise UsageError(f"--host {opts.host} needs --token: others reach that address",
                             print_help=False)  # fmt: skip
        views = [open_view(job, self.settings, ask_agents) for _ in range(2)]
        live, asked = map(questions.ViewThread, views)
        page = server.Dashboard(
            server.LiveFeed(live), questions.SharedAnswers(live, asked), rights,
            lambda act: acts.carry_out(act, job, self.settings, views[0].crawl),
        )  # fmt: skip
        port = server.listen(page, opts.host, opts.port)
        host = f"[{opts.host}]" if ":" in opts.host else opts.host
        print(f"http://{host}:{port}/ shows {views[0].name}; Ctrl-C ends it", flush=True)
        reactor: Any = installed
        reactor.run()
        return 0
