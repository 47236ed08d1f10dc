// A browser breaks all requests off when its network changes, and asks for no part of a page again:
// a page that lacks one is loaded anew, a few times, and says so. Without modules: it needs nothing.

(() => {
  const MOST = 5;
  let lacks = false;
  addEventListener("error", (event) => { lacks ||= event.target !== window; }, true);
  addEventListener("load", () => {
    const tries = history.state?.tries ?? 0;
    if (!lacks) {
      if (tries) history.replaceState(null, "");
      return;
    }
    const again = tries < MOST;
    const said = document.createElement("p");
    said.className = "told bad";
    said.setAttribute("role", "alert");
    said.textContent = `A part of this page did not arrive${again ? "; loading it again ..." : ": load it again"}`;
    document.getElementById("reading")?.remove();
    document.getElementById("content").before(said); // inside, app.js would write over it
    if (!again) return;
    history.replaceState({ tries: tries + 1 }, "");
    setTimeout(() => location.reload(), 200 * 2 ** tries);
  });
})();
