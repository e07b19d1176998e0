"use strict";

// The slider of epsilon has fixed stops; the number beside it is what counts, and moves the slider to the nearest stop.
function joinEpsilon() {
  const slider = document.getElementById("stops");
  const number = document.getElementById("epsilon");
  const stops = slider.closest("[data-stops]").dataset.stops.split(" ").map(Number);
  const describe = () => slider.setAttribute("aria-valuetext", number.value);
  slider.addEventListener("input", () => {
    number.value = stops[Number(slider.value)];
    describe();
    number.dispatchEvent(new Event("change", { bubbles: true }));
  });
  number.addEventListener("input", () => {
    const given = Math.log(Number(number.value));
    if (Number.isFinite(given)) {
      const gaps = stops.map((stop) => Math.abs(Math.log(stop) - given));
      slider.value = String(gaps.indexOf(Math.min(...gaps)));
      describe();
    }
  });
  describe();
}

// A file beyond the limit is refused here, before it is sent; the server refuses it too.
document.addEventListener(
  "change",
  (event) => {
    const box = event.target.closest && event.target.closest("[data-limit]");
    if (!box || event.target.type !== "file") {
      return;
    }
    const limit = Number(box.dataset.limit);
    const large = [...event.target.files].some((file) => file.size > limit);
    box.querySelectorAll(".too-large").forEach((note) => note.remove());
    if (large) {
      event.stopImmediatePropagation();
      event.target.value = "";
      const note = document.createElement("div");
      note.className = "notice bad too-large";
      note.setAttribute("role", "alert");
      note.textContent =
        "An upload must be at most " + limit / 1e6 + " MB, got a larger file; name its path on this computer instead.";
      box.append(note);
    }
  },
  true,
);

// A button that names a release opens it.
document.addEventListener("click", (event) => {
  const button = event.target.closest && event.target.closest("[data-open]");
  if (button) {
    window.Shiny.setInputValue("open", button.dataset.open, { priority: "event" });
  }
});

if (document.readyState === "loading") {
  document.addEventListener("DOMContentLoaded", joinEpsilon);
} else {
  joinEpsilon();
}
