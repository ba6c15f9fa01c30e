"""The declarations of all settings, by what they are about; `SuiteSettings` has all of them."""
