// What the app may do to a plan: read it and write it. Nothing else in its resource group.

param plan string

@description('Makes the name of the role, which must be unique in the tenant.')
param app string

param principalId string

resource target 'Microsoft.Web/serverfarms@2023-12-01' existing = { name: plan }

resource role 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(resourceGroup().id, app, 'scale plans')
  properties: {
    roleName: 'App Service Plan capacity (${app}, ${uniqueString(resourceGroup().id)})'
    description: 'Reads and sets the capacity of App Service Plans.'
    type: 'CustomRole'
    permissions: [
      {
        actions: [
          'Microsoft.Web/serverfarms/read'
          'Microsoft.Web/serverfarms/write'
          'Microsoft.Web/serverfarms/operationresults/read'
        ]
        notActions: []
        dataActions: []
        notDataActions: []
      }
    ]
    assignableScopes: [resourceGroup().id]
  }
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(target.id, principalId, role.id)
  scope: target
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: role.id
  }
}
