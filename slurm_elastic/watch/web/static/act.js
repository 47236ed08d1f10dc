// A form is sent once: its token is good for one use, and a second click would show a refusal.

addEventListener("submit", (event) => {
  for (const button of event.target.querySelectorAll("button")) {
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
  }
});
addEventListener("pageshow", () => {  // also of a page that the browser kept
  for (const button of document.querySelectorAll("button[aria-busy]")) {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});
