// Reads the identity of the app, which may be in another resource group or subscription.

param name string

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' existing = { name: name }

output principalId string = identity.properties.principalId
output clientId string = identity.properties.clientId
