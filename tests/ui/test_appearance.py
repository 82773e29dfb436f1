"""Dark mode, contrast, states without color, and the width of a phone."""

import json
import threading

import cluster
from browser import PageTest, three_nodes
from proxy import Intercepted, answer

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
# The elements that reach beyond the sides of the window or of a dialog, and no scroll bar shows them.
OUTSIDE = """
const isClipped = (element) => element.closest(".hidden, thead, .skip, #states, .cell") !== null;
const found = [...document.body.querySelectorAll("*")]
    .filter((element) => element.checkVisibility({ opacityProperty: true }) && element.getClientRects().length && !isClipped(element))
    .filter((element) => {
        const { left, right } = element.getBoundingClientRect();
        return left < -0.5 || right > innerWidth + 0.5;
    });
const wide = document.scrollingElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [];
return [...wide, ...found.map((element) => `${element.tagName} ${element.id || element.className} ${element.textContent.trim().slice(0, 30)}`)];
"""
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text of a normal size


def problem(handler, status, code, title):
    body = {"type": "about:blank", "title": title, "status": status, "detail": f"the cluster has {title.lower()}", "code": code}
    answer(handler, status, "application/problem+json", json.dumps(body).encode())
    return True


def refuse(handler, path):
    return path.startswith("/v1/") and problem(handler, 503, "no_leader", "No leader")


def unauthenticated(handler, path):
    return path.startswith("/v1/") and problem(handler, 401, "unauthenticated", "No valid token")


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

    def test_detail_dialogs_errors_and_sign_in_have_enough_contrast(self):
        url = three_nodes().leader().url
        cluster.acquire(url, "contrast", "worker-0")
        cluster.request(url, "DELETE", "/v1/leases/contrast?reason=too+slow")
        cluster.acquire(url, "contrast", "worker-1", metadata={"region": "north"})
        for scheme in ("light", "dark"):
            self.set_scheme(scheme)
            broken = threading.Event()
            proxy = Intercepted(url, lambda handler, path: broken.is_set() and refuse(handler, path))
            self.addCleanup(proxy.stop)
            for part in self.each_part(proxy, broken, "contrast"):
                found = self.script(CONTRASTS)
                weak = [f"{text}: {ratio:.1f}" for ratio, text in found if ratio < LEAST_CONTRAST]
                self.assertEqual(weak, [], f"{scheme}, {part}")

    def test_detail_dialogs_and_sign_in_fit_on_a_phone(self):
        url = three_nodes().leader().url
        # One word of the longest length: it cannot break at a space.
        name, holder = f"phone/{'n' * 194}", "h" * 200
        path = f"/v1/leases/phone%2F{'n' * 194}"
        cluster.acquire(url, name, holder, metadata={"k" * 60: "v" * 300})
        for width in (320, 390):
            self.size(width, 700)
            broken = threading.Event()
            proxy = Intercepted(url, lambda handler, path: broken.is_set() and refuse(handler, path))
            self.addCleanup(proxy.stop)
            for part in self.each_part(proxy, broken, f"phone%2F{'n' * 194}"):
                self.assertEqual(self.script(OUTSIDE), [], f"{width} pixels, {part}")
        cluster.request(url, "DELETE", path)

    def each_part(self, proxy, broken, name):
        """Shows the detail, each dialog, the error in a dialog, the banner and the sign-in, one after the other."""
        holder = cluster.request(proxy.upstream, "GET", f"/v1/leases/{name}")["holder"]
        self.open(proxy.url, f"#lease/{name}")
        self.wait_text("#summary", "Held by")
        self.fill("#explain-holder", holder)
        self.click("#explain button")
        self.wait_text("#explanation", "has the lease since")
        yield "detail"
        self.click("#revoke")
        self.wait_visible("dialog .danger")
        yield "dialog"
        broken.set()
        self.click("dialog .danger")
        self.wait_text("dialog .error", "503 no_leader")
        yield "error in the dialog"
        self.click("dialog .buttons button[type=button]")
        self.wait(lambda: not self.find("dialog").is_displayed(), "the dialog is closed")
        self.wait_visible("#banner")
        yield "banner"
        broken.clear()
        self.open(proxy.url, "#nodes")
        self.click("#node-rows button:not([hidden])")
        self.wait_visible("dialog .primary")
        yield "dialog of a transfer"
        proxy.take = lambda handler, path: unauthenticated(handler, path)
        self.open(proxy.url, ready=False)
        self.fill("#token", "not-a-token")
        self.click("#login button")
        self.wait(lambda: self.text("#login-error"), "the error of the sign-in")
        yield "sign-in"

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
        kinds = {
            "leases": ["active", "expired", "released", "revoked", "handed_over", "restored"],
            "roles": ["leader", "follower", "learner"],
            "nodes and disks": ["ok", "lagging", "unreachable", "stalled"],
        }
        shapes = self.driver.execute_async_script(
            """const [kinds, done] = arguments;
               import(new URL("ui/format.js", location.href.split("#")[0]).href).then(({ shapeOf, STATES }) =>
                   done([STATES, Object.entries(kinds).map(([group, states]) => [group, states.map(shapeOf)])]));""",
            kinds,
        )
        self.assertEqual(shapes[0], kinds["leases"])
        for group, found in shapes[1]:
            self.assertEqual(len(set(found)), len(kinds[group]), f"{group}: {found}")
            self.assertNotIn("◇", found, f"{group}: the shape of unknown states")
