"""Logs in by the form of the start page and reads the inbox."""

import scrapy
from scrapy.http import FormRequest

from login.items import Message


class InboxSpider(scrapy.Spider):
    """``-a site=URL``"""

    name = "inbox"

    def __init__(self, site, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{site}/login"]

    def parse(self, response):
        """Fill in the form; its hidden token goes along."""
        yield FormRequest.from_response(
            response,
            formdata={"user": "anna", "password": "secret"},
            callback=self.logged_in,
            cb_kwargs={"member": "anna"},
        )

    def logged_in(self, response, member):
        """Read the list of messages, or say that the login failed."""
        if b"Welcome" not in response.body:
            self.logger.error("the login failed")
            return
        for link in response.css("a.message"):
            yield response.follow(
                link,
                self.message,
                cb_kwargs={"member": member},
                meta={"text": link.attrib["title"]},
            )

    def message(self, response, member):
        """One item for each message."""
        yield Message(
            number=int(response.css("h1::text").re_first(r"\d+")),
            text=response.css("p::text").get(),
            member=member,
        )
