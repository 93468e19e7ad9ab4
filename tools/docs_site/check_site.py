"""Checks a built site: links, anchors and pictures lead to its own files, pages load nothing from other servers, and
every table is one."""
import html.parser
import posixpath
import re
import urllib.parse

RULE = re.compile(r"\|\s*:?-{3,}:?\s*\|")  # the line below a table's header, which Markdown prints if it is no table


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads, self.rules, self.code = {"", "top"}, set(), set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.code += tag in ("pre", "code", "script", "style")
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("canonical", "prev", "next") and attributes.get("href"):
            self.loads.add(attributes["href"])
        elif tag in ("script", "img", "iframe", "source") and attributes.get("src"):
            self.loads.add(attributes["src"])

    def handle_endtag(self, tag):
        self.code -= tag in ("pre", "code", "script", "style")

    def handle_data(self, text):
        if not self.code:
            self.rules += RULE.findall(text)


def problems(site):
    pages = {path.relative_to(site).as_posix(): Page(path.read_text(errors="replace")) for path in site.glob("**/*.html")}
    found = []
    for name, page in sorted(pages.items()):
        if page.rules:
            found.append(f"{name}: shows the text {page.rules[0]}: the header of a table is not a line of its own")
        for link in sorted(page.links | page.loads):
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                if link in page.loads and address.scheme not in ("data", "javascript"):
                    found.append(f"{name}: loads {link} from another server")
                continue
            path = urllib.parse.unquote(address.path)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if path.startswith("/"):
                target = path.lstrip("/") or "index.html"
            if not (site / target).exists():
                found.append(f"{name}: links to {link}, which does not exist")
            elif target in pages and urllib.parse.unquote(address.fragment) not in pages[target].anchors:
                found.append(f"{name}: links to {link}, whose anchor does not exist")
    return found
