"""Dark mode, contrast, and states without color."""

import cluster
from browser import PageTest, three_nodes

# Contrast by WCAG 2, of the text of each visible element with text of its own.
CONTRASTS = """
const channels = (color) => color.match(/[\\d.]+/g).map(Number);
const linear = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
const ground = (element) => {
    for (; element; element = element.parentElement) {
        const color = channels(getComputedStyle(element).backgroundColor);
        if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
};
const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
return [...document.body.querySelectorAll("*")]
    .filter((element) => hasText(element) && element.checkVisibility() && element.getClientRects().length)
    .map((element) => {
        const [one, other] = [channels(getComputedStyle(element).color), ground(element)].map(luminance).sort((a, b) => b - a);
        return [(one + 0.05) / (other + 0.05), `${element.className || element.tagName} ${element.textContent.trim().slice(0, 30)}`];
    });
"""
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text of a normal size


class Appearance(PageTest):
    def tearDown(self):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        super().tearDown()

    def set_scheme(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def lease_in_each_state(self, prefix):
        url = three_nodes().leader().url
        for state in ("active", "released", "revoked", "expired"):
            lease = cluster.acquire(url, f"{prefix}{state}", "worker-1", 300 if state == "expired" else 600_000)
            if state == "released":
                body = {"holder": "worker-1", "token": lease["token"]}
                cluster.request(url, "POST", f"/v1/leases/{prefix}{state}/release", body)
            elif state == "revoked":
                cluster.request(url, "DELETE", f"/v1/leases/{prefix}{state}")
        self.open(url)
        self.fill("#prefix", prefix)
        for state in ("released", "revoked", "expired"):
            self.press_chip(state)
        for state in ("active", "released", "revoked", "expired"):
            self.wait_row(f"{prefix}{state}", state.capitalize())

    def test_text_has_enough_contrast_light_and_dark(self):
        grounds = []
        for scheme in ("light", "dark"):
            self.set_scheme(scheme)
            self.lease_in_each_state(f"look-{scheme}-")
            self.script("document.activeElement.blur()")
            grounds.append(self.script("return getComputedStyle(document.body).backgroundColor"))
            found = self.script(CONTRASTS)
            self.assertGreater(len(found), 40, "the page shows much text")
            weak = [f"{text}: {ratio:.1f}" for ratio, text in found if ratio < LEAST_CONTRAST]
            self.assertEqual(weak, [], scheme)
        self.assertNotEqual(grounds[0], grounds[1], "the page is dark in dark mode")

    def test_states_differ_without_color(self):
        self.lease_in_each_state("shape-")
        marks = self.script(
            """const read = (root, shape, words) => [...document.querySelectorAll(root)].map((one) =>
                   [one.querySelector(shape).textContent.trim(), one.querySelector(words).textContent.trim()]);
               return read(".rows .line:not([hidden])", ".cell.state .shape", ".cell.state .words");"""
        )
        self.assertEqual(len(marks), 4)
        self.assertTrue(all(shape and words for shape, words in marks), marks)
        self.assertEqual(len({shape for shape, _ in marks}), 4, "each state has a shape of its own")
        self.assertEqual(len({words for _, words in marks}), 4, "each state has words of its own")
