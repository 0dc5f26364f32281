"""The one door to the books: request, bind, end, settle; and the checker of the promises."""
