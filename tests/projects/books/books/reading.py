"""How a page of a book is read."""


def book(response):
    """The book of a page, as a dict."""
    return {
        "title": response.css("h1::text").get(),
        "price": response.css(".price::text").re_first(r"[\d.]+"),
        "stock": int(response.css(".stock::text").get()),
    }
