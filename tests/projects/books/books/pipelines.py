"""What becomes of the items."""

from scrapy.exceptions import DropItem


class InStock:
    """Drops what is sold out, and makes the price a number."""

    def process_item(self, item):
        """See the class."""
        if not item["stock"]:
            raise DropItem("sold out")
        return {**item, "price": float(item["price"])}
