#!/usr/bin/env python3
"""Tests the checks of the documents' site on small sites."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
from docs_site import check_site  # noqa: E402

GOOD = """<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://weft.example/">
<h2 id="part">Part</h2><a href="#part">a</a><a href="sub/page.html#here">b</a><a href="https://weft.example">c</a>
<script src="javascript:void(0)"></script><img src="data:image/png;base64,AA==">"""


class CheckSite(unittest.TestCase):
    def problems(self, index):
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "sub").mkdir()
            (site / "style.css").write_text("")
            (site / "sub/page.html").write_text('<p id="here"><a href="../index.html">up</a></p>')
            (site / "index.html").write_text(index)
            return check_site.problems(site)

    def test_good(self):
        """links, anchors and files that exist are right, and links to other servers are too"""
        self.assertEqual(self.problems(GOOD), [])

    def test_bad(self):
        """a missing page, file or anchor is named, and so is what a page loads from another server"""
        for index, text in (('<a href="sub/other.html">', "index.html: links to sub/other.html, which does not exist"),
                            ('<a href="sub/page.html#there">', "index.html: links to sub/page.html#there, whose anchor does not exist"),
                            ('<a href="#there">', "index.html: links to #there, whose anchor does not exist"),
                            ('<img src="picture.svg">', "index.html: links to picture.svg, which does not exist"),
                            ('<script src="https://cdn.example/a.js"></script>',
                             "index.html: loads https://cdn.example/a.js from another server"),
                            ('<link rel="stylesheet" href="//fonts.example/a.css">',
                             "index.html: loads //fonts.example/a.css from another server")):
            self.assertEqual(self.problems(index), [text])

    def test_table(self):
        """a table that Markdown shows as text is named; the same text in code is right"""
        self.assertEqual(self.problems("<p>a paragraph. | a |\nb |\n|---|---|\n| 1 | 2 |</p>"),
                         ["index.html: shows the text |---|: the header of a table is not a line of its own"])
        self.assertEqual(self.problems("<pre><code>| a |\n|---|</code></pre><p><code>|---|</code></p>"), [])


if __name__ == "__main__":
    unittest.main()
